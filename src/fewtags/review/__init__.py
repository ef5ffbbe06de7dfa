"""The review page: people decide about the tags a model finds. `store` keeps what they said, and is the authority."""
