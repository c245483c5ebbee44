"""Clusters of bars: where each stands, what is said of it, and what has no value."""

import re

from clipwise.lab.report.grouped_bars import Bar, GroupedBars, as_series, png, svg

CHART = GroupedBars(
    name="share",
    title="Share <clipped>",
    y_label="share",
    categories=("fixed", "global & co"),
    series=as_series(("a", "b", "c"), [[Bar(0.5, 0.4, 0.6), Bar(0.25), Bar(1.0)], [Bar(0.0), None, Bar(0.75)]]),
    strong=("b",),
    percent=True,
    note="whiskers",
)


def test_in_words():
    assert CHART.alt() == (
        "Share <clipped>. fixed: from 25.0 % (b) to 100.0 % (c), b 25.0 %; global & co: from 0.0 % (a) to 75.0 % (c)."
    )
    assert CHART.missing == "no figure: global & co, b"


def test_bars_stand_at_their_height():
    drawn = svg(CHART, width=560, height=260)
    bars = re.findall(r'<rect ([^>]*) x="([\d.]+)" y="([\d.]+)" width="[\d.]+" height="([\d.]+)"><title>([^<]*)', drawn)
    assert [title for *_, title in bars] == [
        "fixed, a: 50.0 %", "fixed, b: 25.0 %", "fixed, c: 100.0 %", "global &amp; co, a: 0.0 %", "global &amp; co, c: 75.0 %",
    ]  # fmt: skip
    height = {title: float(tall) for *_, tall, title in bars}
    full = height["fixed, c: 100.0 %"]
    assert abs(height["fixed, a: 50.0 %"] / full - 0.5) < 0.01
    assert abs(height["fixed, b: 25.0 %"] / full - 0.25) < 0.01
    places = [float(x) for _, x, *_ in bars]
    assert places == sorted(places)
    assert [look for look, *_ in bars if "class" in look] == ['class="f0"']  # b alone; the others are grey
    assert "Share &lt;clipped&gt;" in drawn
    assert "no figure: global &amp; co, b" in drawn
    assert "other groups" in drawn


def test_as_a_picture():
    from io import BytesIO

    from matplotlib.image import imread

    content = png(CHART)
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert b"from 25.0 % (b)" in content  # the sentence travels with the file
    pixels = imread(BytesIO(content))
    blue = (abs(pixels[:, :, :3] - [0x0B / 255, 0x62 / 255, 0xA8 / 255]) < 0.02).all(2)
    rows = blue.any(1).nonzero()[0]
    assert len(rows) > 50  # the bar of b, a quarter of the way up
