"""The engine inside the process: transformers, paged keys and values, continuous batches."""
