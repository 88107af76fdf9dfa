//! The tests are in `tests`: what the API server decides while teams use the product.
