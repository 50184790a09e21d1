"""How fast the tool itself is: ratios measured in one run, against a peer or a floor that is measured beside it."""
