import warnings

print(warnings.filters)
warnings.simplefilter("error")
try:
    warnings.warn("now an error", RuntimeWarning)
except RuntimeWarning as error:
    print("raised", error)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    warnings.warn("kept")
    print(len(caught), caught[0].message, caught[0].filename, caught[0].lineno)
