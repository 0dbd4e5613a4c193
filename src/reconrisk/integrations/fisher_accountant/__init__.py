"""fisher_accountant."""
