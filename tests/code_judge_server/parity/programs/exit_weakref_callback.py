import weakref


class Thing:
    pass


thing = Thing()
ref = weakref.ref(thing, lambda r: print("collected"))
finalizer = weakref.finalize(thing, print, "finalized")
print("main ends")
