import sys, traceback


def hook(kind, value, tb):
    print("hook:", kind.__name__, value, len(traceback.extract_tb(tb)))
    traceback.print_stack()


sys.excepthook = hook
raise KeyError("seen by the hook")
