"""Text as ids: tokenizers, fast encoding, the token store."""
