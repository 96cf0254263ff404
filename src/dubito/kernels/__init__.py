"""Private fast versions of plain formulas."""
