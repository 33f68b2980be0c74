import unittest
class Tests(unittest.TestCase):
    def test_good(self): self.assertEqual(1 + 1, 2)
    def test_bad(self): self.assertEqual([1, 2], [1, 3])
    @unittest.skip("not now")
    def test_skipped(self): pass
if __name__ == "__main__":
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(Tests)
    import io
    out = io.StringIO()
    result = unittest.TextTestRunner(out, verbosity=2).run(suite)
    print(out.getvalue().split("Ran")[0], result)
