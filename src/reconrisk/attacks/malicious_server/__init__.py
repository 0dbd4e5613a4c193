"""malicious_server."""
