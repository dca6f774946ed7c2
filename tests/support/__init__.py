"""What several tests share: models, references, tiny runs."""
