"""A classifier leaves as a Hugging Face folder, ONNX or a numpy folder, each checked against ours.

The names in `__init__.pyi` are the public surface of this room; they load when first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
