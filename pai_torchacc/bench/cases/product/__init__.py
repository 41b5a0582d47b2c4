"""Cases of products, of many, and of small calls."""
