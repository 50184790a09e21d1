"""One solve: the newest consistent set, or the pair that does not fit and the smallest change."""

import re
from typing import Any

import msgspec
import pytest
from solve_samples import STORY, chosen, host, policy, refused, request

from checks.catalogue import shipped
from checks.facts import Kernel, Sglang, Torch, sglang_rows
from checks.hostfacts import HostFacts
from checks.pairs import RULES, Conflict, line_of_driver
from checks.solve import solve
from checks.wishes import toolkits
from fleet.choice import Override
from fleet.problem import Problem


def test_the_newest_set_for_the_hosts_of_the_story() -> None:
    """8 x RTX PRO 6000 with driver 580.95.05: everything CUDA 13, the toolkit no newer than the driver's line."""
    stack = chosen().stack
    assert stack.packages == {
        "sglang": "0.5.23",
        "torch": "2.14.1",
        "sglang-kernel": "0.4.10",
        "flashinfer-python": "0.7.2",
    }
    assert (stack.cuda.version, stack.python, stack.lane) == ("13.0.2", "3.12", 13)


def test_the_record_says_why_and_why_not_newer() -> None:
    """13.0.3 and 13.1 to 13.4 are left out, each with its own reason."""
    cuda = next(one for one in chosen().decisions if one.subject == "cuda")
    why = {one.name: one.reason for one in cuda.rejected}
    assert cuda.chosen == "CUDA 13.0.2"
    assert "known from 1 public source, the policy asks for 2" in why["CUDA 13.0.3"]
    assert "the driver translates PTX up to CUDA 13.0" in why["CUDA 13.1.0"]
    assert "PTX" in why["CUDA 13.4.2"]
    assert cuda.candidates[0].evidence[0].checksum.startswith("sha256:81a5d0d0")


def test_one_source_is_enough_when_the_policy_says_so() -> None:
    """The written policy decides, not the code."""
    assert chosen(policy=policy(checksum_sources=1)).stack.cuda.version == "13.0.3"


@pytest.mark.parametrize("row", sglang_rows(), ids=lambda row: row.version)
def test_each_release_keeps_its_lane(row: Sglang) -> None:
    """Each release on record solves to the CUDA major of the torch it pins."""
    hopper = host(capabilities=("9.0",), pythons=("3.10", "3.11", "3.12"), driver="615.71.09")
    stack = chosen(hopper, wishes={"sglang": row.version}).stack
    assert (row.version, int(row.cuda.split(".")[0])) == (stack.sglang.version, stack.lane)


def test_the_lanes_change_between_0_5_10_post1_and_0_5_11() -> None:
    """0.5.10.post1 is the last with CUDA 12 by default, 0.5.11 the first with CUDA 13."""
    assert chosen(wishes={"cuda": "12"}).stack.sglang.version == "0.5.10.post1"
    lanes = [(row.version, row.cuda.partition(".")[0]) for row in reversed(sglang_rows())]
    at = [version for version, _ in lanes].index("0.5.11")
    assert {lane for _, lane in lanes[:at]} == {"12"}
    assert {lane for _, lane in lanes[at:]} == {"13"}
    assert lanes[at - 1][0] == "0.5.10.post1"


def test_the_stack_of_the_story_is_refused() -> None:
    """Torch 2.11 dev, sgl_kernel 0.3.21, flashinfer 0.6.4: the pair is named, and the smallest way out."""
    found = refused(wishes=STORY)
    first = found.conflicts[0]
    assert (first.left, first.right) == ("torch 2.11.0.dev20260126+cu130", "sgl-kernel 0.3.21")
    assert "wants the C10 form `int`, this torch exports `unsigned`" in first.why
    assert any("flashinfer-python 0.6.4 and every sglang" in str(one) for one in found.conflicts)
    assert found.changes[0].gives_way == ["wishes.flashinfer-python", "wishes.torch"]
    assert "torch 2.9.1" in found.changes[0].told


def test_the_story_on_cuda_13_needs_three_changes() -> None:
    """With CUDA 13 asked for, the kernel must go too; staying on 12 is told as the other way."""
    changes = refused(wishes={**STORY, "cuda": "13"}).changes
    assert {3} == {len(change.gives_way) for change in changes}
    assert any("sglang-kernel 0.4.10" in change.told and "torch 2.14.1" in change.told for change in changes)


def test_an_old_driver_leads_to_the_older_lane() -> None:
    """Nobody asked for CUDA 13, the driver is of the 12.8 line: the newest set below it is chosen."""
    stack = chosen(host(driver="570.124.06")).stack
    assert (stack.lane, stack.sglang.version) == (12, "0.5.9")


def test_an_old_driver_and_cuda_13_are_a_named_pair() -> None:
    """The host and its driver are named; either the wish or the driver may give way."""
    found = refused(host("gpu-07", driver="570.124.06"), host(), wishes={"cuda": "13"})
    assert found.conflicts[0].left == "driver 570.124.06 of gpu-07"
    assert found.conflicts[0].why == "CUDA 13 needs driver >= 580.65.06"
    told = [change.told for change in found.changes]
    assert told == ["`wishes.cuda`: 13 -> CUDA 12.8.0", "install driver 580.65.06 or newer on gpu-07"]


@pytest.mark.parametrize(
    ("change", "wishes", "pair", "hint"),
    [
        ({"glibc": "2.31"}, {"sglang": "0.5.23"}, "glibc 2.31 of gpu-01 and sglang 0.5.23", "sglang 0.5.10.post1"),
        ({"glibc": ""}, {"sglang": "0.5.23"}, "glibc (not known) of gpu-01", "newer glibc"),
        ({"open_modules": False}, {}, "kernel modules of gpu-01", "install the open kernel modules on gpu-01"),
        ({"pythons": ("3.9",)}, {}, "Python 3.9 of gpu-01", "install the interpreter on gpu-01"),
        ({"driver": ""}, {}, "driver (not known) of gpu-01", "install driver"),
        ({"capabilities": ("12.1",)}, {"sglang": "0.5.23"}, "compute capability 12.1", "leave out gpu-01"),
        ({"capabilities": ("7.0",)}, {"cuda": "13"}, "compute capability 7.0", "CUDA 12"),
        ({"capabilities": ("4.2",)}, {}, "this compute capability is not on record", "leave out gpu-01"),
        ({"platform": ""}, {}, "unknown platform", "leave out gpu-01"),
        ({}, {"sglang": "0.5.23", "torch": "2.11.0"}, "sglang 0.5.23 and torch 2.11.0", "torch 2.14.1"),
        ({}, {"cuda": "13.2"}, "driver 580.95.05 of gpu-01 and CUDA 13.2.0", "install driver 595 or newer"),
        ({"capabilities": ()}, {}, "compute capability (not known) of gpu-01", "leave out gpu-01"),
        ({"glibc": ""}, {"sglang": "0.5.9"}, "the glibc of the host could not be read", "newer glibc"),
        ({"driver": "", "open_modules": False}, {}, "kernel modules (not known) of gpu-01", "install driver"),
        ({"driver": "100.1"}, {"cuda": "12.9.1"}, "driver 100.1 of gpu-01", "install driver"),
        ({}, {"cuda": "13.4.1"}, "CUDA 13.4.1 and policy.checksum_sources", "CUDA 13.0.2"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], wishes: dict[str, str], pair: str, hint: str) -> None:
    """Each fault of a host or a wish gives its pair and a way out."""
    text = str(refused(host(**change), wishes=wishes))
    assert pair in text
    assert hint in text


def test_what_is_unknown_is_not_taken_for_good() -> None:
    """A kernel whose C10 form was never read goes only with the torch that a release of sglang pins it with."""
    text = str(refused(wishes={"sglang-kernel": "0.4.8", "torch": "2.13.0"}))
    assert "was never read" in text


@pytest.mark.parametrize("version", ["2.11.0.dev20260101", "2.5.0"])
def test_a_torch_that_is_not_on_record_is_told_as_unknown(version: str) -> None:
    """No empty CUDA is named as if it were a fact; what is sure comes first."""
    found = refused(wishes={"torch": version})
    unknown = next(one for one in found.conflicts if one.left.startswith("compute capability"))
    assert unknown.why == "neither the GPUs nor the CUDA it is built for are on record"
    assert not unknown.known
    assert [one.known for one in found.conflicts] == sorted((one.known for one in found.conflicts), reverse=True)


def _told(rule_about: tuple[str, ...], parts: dict[str, Any], *hosts: HostFacts) -> list[Conflict]:
    rules = [rule for rule in RULES if set(rule_about) <= set(rule.about) and set(rule.needs) <= set(parts)]
    return [one for rule in rules for one in rule.judge(parts, hosts or (host(),))]


def test_no_rule_tells_an_empty_fact_as_certain() -> None:
    """Parts and a host of which nothing is known: each objection says so, and none has a gap in its words."""
    toolkit = toolkits(shipped())[0]
    bare = Sglang(**{**msgspec.structs.asdict(sglang_rows()[0]), "glibc": "", "pythons": []})
    parts: dict[str, Any] = {
        "sglang": bare,
        "torch": Torch(version="9.9", source="x"),
        "kernel": Kernel(name="sglang-kernel", version="9.9", source="x"),
        "cuda": toolkit,
    }
    nothing = host(driver="", capabilities=(), open_modules=False, glibc="", pythons=(), platform="")
    unread = host(driver="", open_modules=False)
    for about in (
        ("gpu",),
        ("driver",),
        ("modules",),
        ("glibc",),
        ("platform",),
        ("kernel", "torch"),
        ("torch", "cuda"),
    ):
        for one in _told(about, parts, nothing, unread):
            assert not one.known, one
            assert not re.search(r"CUDA ?(,|;|$)|>= ?(;|$)|capability  |sm_ |for $", str(one)), one


def test_the_parts_that_are_not_known_need_a_release_of_sglang_that_pins_them() -> None:
    """A kernel wheel with unread GPUs or CUDA is not taken for good."""
    kernel = Kernel(name="sglang-kernel", version="0.4.99", c10="unsigned", source="x")
    torch = Torch(version="2.13.0", cuda="13.0", c10="unsigned", source="x")
    told = [one.why for one in _told(("kernel",), {"sglang": sglang_rows()[0], "torch": torch, "kernel": kernel})]
    assert "the CUDA that sglang-kernel 0.4.99 is built for is not on record" in told
    assert any(one.startswith("the GPUs it carries code for are not on record") for one in told)


def test_hosts_that_differ_are_named_apart() -> None:
    """The driver of one is not said of the other."""
    found = refused(host("a", driver=""), host("b", driver="570.124.06"), wishes={"cuda": "13"})
    assert {"driver 570.124.06 of b", "driver (not known) of a"} <= {one.left for one in found.conflicts}


@pytest.mark.parametrize(
    ("wishes", "checksums", "first", "gives_way"),
    [
        ({"cuda": "12.8.1"}, 2, "CUDA 12.8.1 and policy.checksum_sources", ["policy.checksum_sources", "wishes.cuda"]),
        ({"cuda": "12.8.1", "sglang": "0.5.23"}, 2, "CUDA 12.8.1 and policy.checksum_sources", ["wishes.cuda"]),
        (
            {"cuda": "12.8.1", "sglang": "0.5.23"},
            1,
            "torch 2.14.1 and CUDA 12.8.1: this torch is built for CUDA 13.0",
            ["wishes.cuda", "wishes.sglang"],
        ),
    ],
)
def test_the_release_that_was_asked_for_is_named(
    wishes: dict[str, str], checksums: int, first: str, gives_way: list[str]
) -> None:
    """Not some other release that the wish leaves out; with the smallest changes."""
    found = refused(wishes=wishes, policy=policy(checksum_sources=checksums))
    assert str(found.conflicts[0]).startswith(first)
    assert sorted(name for change in found.changes for name in change.gives_way) == gives_way
    if checksums > 1 and "sglang" in wishes:
        assert any("torch 2.14.1 and CUDA 12.8.1" in str(one) for one in found.conflicts)


def test_the_policy_holds_young_releases_and_leaves_out_others() -> None:
    """hold_days by the day a release came out; exclude by requirement; both say so in the record."""
    held = chosen(policy=policy(hold_days=60))
    assert held.stack.sglang.version == "0.5.21"
    why = {one.name: one.reason for one in held.decisions[0].rejected}
    assert why["sglang 0.5.23"] == "out for 31 days, 60 are asked for"
    left = chosen(policy=policy(exclude=["sglang==0.5.23", "cuda>=13.0.2"]))
    assert (left.stack.sglang.version, left.stack.cuda.version) == ("0.5.22", "13.0.1")


def test_line_stays_where_it_is() -> None:
    """`line` takes updates only within today's lines."""
    today = {"cuda": "12.9.0", "torch": "2.9.1"}
    stack = chosen(policy=policy(prefer="line"), today=today).stack
    assert (stack.cuda.version, stack.torch.version, stack.sglang.version) == ("12.9.1", "2.9.1", "0.5.10.post1")


def test_an_override_sets_the_pin_aside_and_says_so() -> None:
    """Only with a reason, which ends up in the record; what no metadata says is judged all the same."""
    overrides = {"torch": Override(version="2.15.0", reason="bug 1 is mended there")}
    found = chosen(overrides=overrides)
    assert found.stack.torch.version == "2.15.0"
    assert "set by an override: bug 1 is mended there" in found.decisions[1].reason
    wrong = {"torch": Override(version="2.13.0", reason="x")}
    assert "C10 form" in str(refused(wishes={"sglang": "0.5.23"}, overrides=wrong))


def test_python_is_one_that_all_hosts_have() -> None:
    """The newest common one; none in common is a refusal that names a host."""
    both = (host("a", pythons=("3.11", "3.12")), host("b", pythons=("3.11", "3.13")))
    assert chosen(*both).stack.python == "3.11"
    assert "Python" in str(refused(host("a", pythons=("3.12",)), host("b", pythons=("3.13",))))


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        ({"sglang": "0.5.99"}, "release 0.5.99 is not on record; did you mean `0.5.9`?"),
        ({"cuda": "13.0.9"}, "release 13.0.9 is not on record"),
        ({"sglan": "1"}, "`wishes.sglan`: nothing is known of it; did you mean `sglang`?"),
        ({"torch": "the best"}, "want a version, a range or `newest`, got 'the best'"),
    ],
)
def test_a_wish_that_cannot_be_read_is_told(wishes: dict[str, str], said: str) -> None:
    """Unknown releases and words, with the nearest known one."""
    with pytest.raises(Problem) as caught:
        solve([host()], request(wishes))
    assert said in str(caught.value)


def test_no_hosts_is_a_problem() -> None:
    """Nothing is chosen for nobody."""
    with pytest.raises(Problem, match="no hosts to solve for"):
        solve([], request())


@pytest.mark.parametrize(
    ("driver", "line"), [("580.95.05", "13.0"), ("585.1", "13.0"), ("620.1", "13.4"), ("100.1", ""), ("", "")]
)
def test_the_line_of_a_driver(driver: str, line: str) -> None:
    """Branches between two lines count as the older one."""
    assert line == line_of_driver(driver)
