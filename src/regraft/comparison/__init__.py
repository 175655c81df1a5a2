"""Was it worth it? Arms, the sealed test set, the verdict, what a base is worth in labels.

The names in `__init__.pyi` are the public surface of this room; they load when first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
