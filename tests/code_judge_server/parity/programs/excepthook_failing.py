import sys


def hook(kind, value, tb):
    raise TypeError("the hook failed")


sys.excepthook = hook
raise KeyError("original")
