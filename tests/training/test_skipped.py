from driftvq.training.skipped import SkippedImages


def test_each_image_is_listed_once_also_after_a_restart(tmp_path):
    skipped = SkippedImages(tmp_path)
    skipped.add([])
    assert not skipped.path.exists()
    skipped.add([("a.png", "empty"), ("odd\tname\n.png", "two\nlines")])
    skipped.add([("a.png", "empty")])
    again = SkippedImages(tmp_path)
    again.add([("a.png", "empty"), ("b.png", "truncated")])
    assert skipped.path.read_text() == "a.png\tempty\nodd name .png\ttwo lines\nb.png\ttruncated\n"
    assert skipped.count() == again.count() == 3
