"""sca-search: ternary networks at the sparsity you ask for."""
