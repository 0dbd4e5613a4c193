"""Our code against a peer or a naive version, in one run on one machine: ratios and memory, never absolute promises."""
