import warnings

warnings.warn("at one", stacklevel=1)
warnings.warn("at two", stacklevel=2)
warnings.warn("at three", DeprecationWarning, stacklevel=3)


def old():
    warnings.warn("old is old", DeprecationWarning, stacklevel=2)


old()
old()
for _ in range(3):
    warnings.warn("thrice", UserWarning)
