import gc, sys, weakref
class Thing:
    def __del__(self): print("gone")
thing = Thing()
ref, cache = weakref.ref(thing), weakref.WeakValueDictionary(k=thing)
print(ref() is thing, len(cache), sys.getrefcount(thing))
del thing
print(ref(), len(cache))
cycle = Thing(); cycle.me = cycle; del cycle
print(gc.collect() > 0)
