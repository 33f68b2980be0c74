"""The driver's side of rollouts: admission, the stream of groups, limits and the pool of workers."""
