import cProfile
cProfile.Profile().enable()
raise ValueError("after the profiler was enabled")
