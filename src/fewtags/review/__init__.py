"""The review page: people review the tags a model finds. `store` keeps their decisions and is the source of truth."""
