//! A fair task queue.
