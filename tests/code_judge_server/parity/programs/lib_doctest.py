def double(x):
    """
    >>> double(2)
    4
    >>> double("a")
    'ab'
    """
    return x * 2
if __name__ == "__main__":
    import doctest
    print(doctest.testmod())
