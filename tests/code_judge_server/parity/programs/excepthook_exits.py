import sys


def hook(kind, value, tb):
    sys.exit(7)


sys.excepthook = hook
raise KeyError("original")
