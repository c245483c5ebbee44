"""Draws docs/flow.svg, the picture of the private step. Run: .venv/bin/python docs/flow.py"""

from pathlib import Path

STAGES = [
    ("sampling", "a Poisson batch,", "perhaps empty"),
    ("norms", "one forward and", "backward pass"),
    ("clipping", "a weight for each", "example"),
    ("weighted sum", "sum of w_i g_i,", "nothing stored"),
    ("noise", "Gaussian, AES,", "once a step"),
    ("optimizer", "your own, over the", "expected batch size"),
    ("ledger", "charged before", "the noise exists"),
]
WIDTH, GAP, HEIGHT = 118, 18, 74
PRIVATE, PUBLIC = "#b5475d", "#2f7d6b"


def box(i: int) -> str:
    name, first, second = STAGES[i]
    x = 12 + i * (WIDTH + GAP)
    colour = PRIVATE if i < 4 else PUBLIC
    arrow = (
        f'<path d="M{x + WIDTH + 2} 85 h{GAP - 7}" stroke="#888" stroke-width="2" marker-end="url(#a)"/>'
        if i < 6
        else ""
    )
    return (
        f'<rect x="{x}" y="48" width="{WIDTH}" height="{HEIGHT}" rx="8" fill="{colour}" fill-opacity="0.13" stroke="{colour}" '
        f'stroke-width="1.5"/><text x="{x + WIDTH / 2}" y="72" class="n" fill="{colour}">{name}</text>'
        f'<text x="{x + WIDTH / 2}" y="92" class="s">{first}</text><text x="{x + WIDTH / 2}" y="107" class="s">{second}</text>{arrow}'
    )


def main() -> None:
    total = 24 + 7 * WIDTH + 6 * GAP
    split = 12 + 4 * (WIDTH + GAP) - GAP / 2
    end = 12 + 6 * (WIDTH + GAP) + WIDTH / 2
    start = 12 + 2 * (WIDTH + GAP) + WIDTH / 2
    svg = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} 190" role="img" font-family="Helvetica, Arial, sans-serif">
<title>The private step: sampling, norms, clipping, weighted sum, noise, optimizer, ledger</title>
<desc>Seven stages in one direction. The first four see private values. Noise is the only way to the last three, which see
released values; the method's next state comes from released values too.</desc>
<style>.n{{font-size:15px;font-weight:bold;text-anchor:middle}}.s{{font-size:12px;text-anchor:middle;fill:#666}}.t{{font-size:13px;fill:#666}}</style>
<defs><marker id="a" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="6" markerHeight="6" orient="auto">
<path d="M0 0 8 4 0 8z" fill="#888"/></marker></defs>
<text x="12" y="28" class="t">private values: never stored, logged or returned</text>
<text x="{split + 10}" y="28" class="t">released values: noised, free to use</text>
<path d="M{split} 12 V132" stroke="#888" stroke-dasharray="4 4"/>
{"".join(box(i) for i in range(7))}
<path d="M{end - 2 * (WIDTH + GAP)} 124 v34 H{start} v-30" fill="none" stroke="{PUBLIC}" stroke-width="1.5" marker-end="url(#a)"/>
<text x="{start + 14}" y="174" class="t">the method's next threshold, from released values only</text>
</svg>
"""
    Path(__file__).with_name("flow.svg").write_text(svg)


if __name__ == "__main__":
    main()
