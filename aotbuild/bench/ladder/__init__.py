"""The ladder: the published experiments rung by rung, and what ahead-of-time adds to them."""
