"""One file per dialect of `config.json`: `read` a DraftConfig from it and `write` one back as the vendor writes it."""
