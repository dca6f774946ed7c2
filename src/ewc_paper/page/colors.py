"""Colors on a dark page: every color of a figure gets a lighter one that can be seen there."""

import colorsys

from matplotlib.colors import to_hex, to_rgb

DARK_PAGE = "#16181d"  # the background in page.css
CONTRAST = 4.0  # at least; WCAG asks for 3 in graphics
GRAY = 0.12  # saturation below which a color is a shade of gray
LIGHT = 0.7  # lightness from which on a color serves as a background
AREA = 0.18  # of such a color, mixed into that of the page

Rgb = tuple[float, float, float]
WHITE = (1.0, 1.0, 1.0)


def dark(color: str) -> str:
    """Return the color to use on a dark page: shades of gray inverted, others made lighter."""
    rgb = to_rgb(color)
    hue, lightness, saturation = colorsys.rgb_to_hls(*rgb)
    if saturation < GRAY:
        return to_hex(colorsys.hls_to_rgb(hue, 1 - lightness, saturation))
    while contrast(to_hex(rgb), DARK_PAGE) < CONTRAST:
        rgb = _mixed(rgb, WHITE, 0.95)
    return to_hex(rgb)


def dark_area(color: str) -> str:
    """Return the color of an area on a dark page: light ones, which lines lie on, become dark."""
    lightness = colorsys.rgb_to_hls(*to_rgb(color))[1]
    if lightness < LIGHT:
        return dark(color)
    return to_hex(_mixed(to_rgb(color), to_rgb(DARK_PAGE), AREA))


def _mixed(one: Rgb, other: Rgb, share: float) -> Rgb:
    """Return a mixture of two colors, with a share of the first."""
    red, green, blue = (share * a + (1 - share) * b for a, b in zip(one, other, strict=True))
    return red, green, blue


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colors as WCAG defines it, from 1 to 21."""
    high, low = sorted((_luminance(to_rgb(one)), _luminance(to_rgb(other))), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(rgb: Rgb) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
