import cProfile, io, pstats, sys
def work():
    return sum(range(10))
profile = cProfile.Profile()
profile.runcall(work)
stats = pstats.Stats(profile)
print(sorted(name for _, _, name in stats.stats))
events = []
sys.settrace(lambda frame, event, arg: events.append((frame.f_code.co_name, event)))
work()
sys.settrace(None)
print(events)
