"""A substitute for tiktoken: a token is a byte, and the end of a text is token 256."""


class _Bytes:
    max_token_value = 256

    def encode(self, text, allowed_special=()):
        return [256] if text == "<|endoftext|>" else list(text.encode())

    def decode(self, tokens):
        return bytes(token for token in tokens if token < 256).decode(errors="replace")

    def decode_bytes(self, tokens):
        return bytes(token % 256 for token in tokens)


def get_encoding(name):
    """Return the only one there is."""
    return _Bytes()
