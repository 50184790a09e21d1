"""SIMULATED: `python -m sglang.launch_server` with SGLang's endpoints, answered by a paced stand-in."""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from . import own_version
from ._arguments import parsed
from ._engine import Engine, log

FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, "
    "the operation will not be performed.)\n"
)
JSON = "application/json"
TEXT = "text/plain; charset=utf-8"


class Api(ThreadingHTTPServer):
    """The HTTP server of one engine."""

    daemon_threads = True
    engine: Engine
    ready = threading.Event()
    # HTTPServer's own looks up the host's full name, which can take seconds.
    server_bind = TCPServer.server_bind


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    # Header and body leave in one packet: with Nagle's algorithm each answer would wait for an ACK, 40 ms.
    disable_nagle_algorithm = True
    wbufsize = -1
    server: Api

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's name
        """Write an access line as uvicorn does."""
        sys.stderr.write(f"INFO:     {self.client_address[0]}:{self.client_address[1]} - {format % args}\n")

    def answer(self, status: int, body: str, kind: str = JSON) -> None:
        """Send one whole answer."""
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def do_GET(self) -> None:  # the base class's name
        """Answer from the table of endpoints."""
        path = self.path.split("?")[0]
        reply = endpoints(self.server.engine).get(path)
        if path in {"/health", "/health_generate"}:
            self.answer(200 if self.server.ready.is_set() else 503, "", TEXT)
        elif path == "/flush_cache":
            self.server.engine.flush()
            self.answer(200, FLUSHED, TEXT)
        elif reply is None:
            self.answer(404, json.dumps({"detail": "Not Found"}))
        else:
            self.answer(200, reply, TEXT if path == "/metrics" else JSON)

    def do_POST(self) -> None:
        """Generate, or flush."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.split("?")[0] != "/generate":
            self.do_GET()
            return
        try:
            request = json.loads(body)
            sampling = request.get("sampling_params") or {}
            reply = self.server.engine.generate(str(request["text"]), int(sampling.get("max_new_tokens", 128)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self.answer(400, json.dumps({"error": {"message": str(error)}}))
            return
        self.answer(200, json.dumps(reply))


def endpoints(engine: Engine) -> dict[str, str]:
    """Path -> body of the endpoints that only tell."""
    model = {
        "model_path": engine.args.model_path,
        "tokenizer_path": engine.args.tokenizer_path or engine.args.model_path,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "simulated": True,
    }
    card = {"id": engine.args.served_model_name, "object": "model", "owned_by": "sglang", "created": 0}
    told = {"model_info": json.dumps(model), "server_info": json.dumps(server_info(engine))}
    found = {"/get_" + name: body for name, body in told.items()}
    if engine.since >= (0, 5, 6):
        found.update({"/" + name: body for name, body in told.items()})
    found["/v1/models"] = json.dumps({"object": "list", "data": [card]})
    if engine.args.enable_metrics:
        found["/metrics"] = metrics(engine)
    return found


def server_info(engine: Engine) -> dict[str, Any]:
    """Every argument at the top and again in each internal state, as SGLang has it."""
    arguments = vars(engine.args)
    inner = {
        **arguments,
        "last_gen_throughput": engine.last_tokens_per_s,
        "memory_usage": {"weight": 71.8, "kvcache": 12.1, "token_capacity": 412345, "graph": 0.4},
        "effective_max_running_requests_per_dp": engine.args.max_running_requests,
    }
    if engine.logged_acceptance is not None:
        inner["avg_spec_accept_length"] = engine.logged_acceptance
    return {
        **arguments,
        "max_total_num_tokens": 412345,
        "internal_states": [inner],
        "version": engine.version,
        "simulated": True,
    }


def metrics(engine: Engine) -> str:
    """The gauges and counters that matter, in Prometheus' text format."""
    model = f'model_name="{engine.args.served_model_name}"'
    labels = "{" + f'engine_type="unified",{model},moe_ep_rank="0",pp_rank="0",tp_rank="0"' + "}"
    return (
        "# TYPE sglang:gen_throughput gauge\n"
        f"sglang:gen_throughput{labels} {engine.last_tokens_per_s}\n"
        "# TYPE sglang:spec_accept_length gauge\n"
        f"sglang:spec_accept_length{labels} {engine.logged_acceptance or 0.0}\n"
        "# TYPE sglang:generation_tokens_total counter\n"
        f"sglang:generation_tokens_total{{{model}}} {float(engine.tokens)}\n"
    )


def serve(engine: Engine) -> int:
    """Load, listen, and serve until killed."""
    log("SIMULATED: this is the lab's stand-in for SGLang, no model runs here")
    log(f"server_args=ServerArgs({', '.join(f'{key}={value!r}' for key, value in vars(engine.args).items())})")
    engine.load()
    try:
        api = Api((engine.args.host, engine.args.port), Handler)
    except OSError:
        where = f"('{engine.args.host}', {engine.args.port})"
        log(f"ERROR:    [Errno 98] error while attempting to bind on address {where}: address already in use")
        return 1
    api.engine = engine
    threading.Thread(target=api.serve_forever, daemon=True).start()
    log(f"Uvicorn running on http://{engine.args.host}:{engine.args.port} (Press CTRL+C to quit)")
    api.ready.set()
    log("The server is fired up and ready to roll!")
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    sys.exit(serve(Engine(parsed(sys.argv[1:], version := own_version()), version)))
