"""Renderer of synthetic faces: batches of layered soft-edged shapes on a rotated head."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from fedra.faces.synthetic.geometry import CROWN, HeadView, Placement, bulge, frontal, mouth_bend, mouth_half, nose_x
from fedra.faces.synthetic.traits import TraitDraws


def render_faces(
    person: TraitDraws, shot: TraitDraws, background: Tensor, grain: Tensor, placement: Placement
) -> Tensor:
    """Render images, uint8 (n, 3, H, W), of people; `background` is a coarse pattern, `grain` is noise."""
    view = placement.view(*grain.shape[-2:])
    canvas = F.interpolate(background, grain.shape[-2:], mode="bilinear", align_corners=False)
    shade = _shade(person, shot, view)
    canvas = _blend(canvas, _back_hair(person, view), _hair_color(person, shot) * (0.6 + 0.4 * shade))
    canvas = _blend(canvas, _shoulders(view), _clothes_color(shot))
    head = _head(person, view)
    face = _features(person, shot, view) * shade
    canvas = canvas * (1 - head[:, None]) + face * head[:, None]
    canvas = _draw_occlusion(canvas, person, shot, view)
    return _apply_camera(canvas, shot, grain)


def _ellipse(
    view: HeadView, x: Tensor, y: Tensor, middle: tuple[Tensor, Tensor], radii: tuple[Tensor, Tensor]
) -> Tensor:
    """Return the coverage (n, H, W) of an axis-aligned ellipse at coordinates (x, y), with an edge one pixel wide."""
    away = torch.sqrt(((x - middle[0]) / radii[0]).square() + ((y - middle[1]) / radii[1]).square() + 1e-6)
    return (0.5 - (away - 1) * torch.minimum(*radii) / view.pixel).clamp(0, 1)


def _below(view: HeadView, distance: Tensor) -> Tensor:
    """Return the coverage where a distance is negative, with the same soft edge."""
    return (0.5 - distance / view.pixel).clamp(0, 1)


def _blend(canvas: Tensor, cover: Tensor, color: Tensor) -> Tensor:
    """Blend `color` (n, 3, 1, 1) or (n, 3, H, W) over the canvas with coverage `cover` (n, H, W)."""
    return torch.lerp(canvas, color.expand_as(canvas), cover[:, None])


def _color(*channels: Tensor) -> Tensor:
    return torch.stack(channels, dim=1)


def _skin_color(person: TraitDraws) -> Tensor:
    tone, red = person.skin_tone, person.skin_red
    return _color(tone * 1.12, tone * (0.86 - 0.08 * red), tone * (0.74 - 0.14 * red))


def _hair_color(person: TraitDraws, shot: TraitDraws) -> Tensor:
    tone = person.hair_tone * (1 + shot.hair_shade)
    return _color(tone * 1.1, tone * (0.95 - 0.25 * person.hair_red), tone * (0.85 - 0.45 * person.hair_red))


def _clothes_color(shot: TraitDraws) -> Tensor:
    tone, red = shot.clothes_tone, shot.clothes_red
    return _color(tone, 0.5 * tone + 0.5 * red, 1 - red)


def _shade(person: TraitDraws, shot: TraitDraws, view: HeadView) -> Tensor:
    """Return the shading of the ellipsoid by light from one side, (n, 1, H, W), around 1."""
    z = bulge(person, view.x, view.y)
    length = torch.sqrt(shot.light_x.square() + shot.light_y.square() + 1)
    slant = (view.x / person.head_width * shot.light_x + view.y / CROWN * shot.light_y + z) / length
    return (1 + shot.contrast * (1.4 * slant.clamp(min=0) - 1))[:, None].clamp(min=0.05)


def _head(person: TraitDraws, view: HeadView) -> Tensor:
    """Return the coverage of the head: an ellipse above the eyes, a superellipse toward the chin."""
    wide = (view.x / person.head_width).abs() + 1e-4
    down = (view.y / torch.where(view.y > 0, person.chin_y, torch.full_like(view.y, CROWN))).abs() + 1e-4
    power = torch.where(view.y > 0, person.jaw, torch.full_like(view.y, 2.0))
    away = (wide**power + down**power) ** (1 / power)
    return _below(view, (away - 1) * person.head_width)


def _back_hair(person: TraitDraws, view: HeadView) -> Tensor:
    """Return the coverage of the hair behind the head, down to its length."""
    radius = person.head_width + 0.12
    zero = torch.zeros_like(radius)
    ball = _ellipse(view, view.x, view.y.clamp(max=0), (zero, zero), (radius, zero + CROWN + 0.12))
    return ball * _below(view, view.y - person.hair_length)


def _shoulders(view: HeadView) -> Tensor:
    neck = _below(view, view.x.abs() - 0.42) * _below(view, 0.6 - view.y)
    top = 1.12 + 0.25 * view.x.square()
    return torch.maximum(neck, _below(view, top - view.y))


def _features(person: TraitDraws, shot: TraitDraws, view: HeadView) -> Tensor:
    """Return the colors of the face before shading."""
    x, y = frontal(person, shot, view.x, view.y)
    canvas = _skin_color(person) * torch.ones_like(x)[:, None]
    skin = _skin_color(person)
    cheeks = torch.exp(-((x.abs() - 0.42).square() + (y - 0.36).square()) / 0.03)
    canvas = canvas * (1 - 0.18 * person.cheek * cheeks)[:, None]
    canvas = _beard(canvas, person, x, y)
    canvas = _nose(canvas, person, shot, view, (x, y))
    canvas = _mouth(canvas, person, shot, view, (x, y))
    mole = person.mole_size.clamp(min=0) + 1e-4
    canvas = _blend(canvas, _ellipse(view, x, y, (person.mole_x, person.mole_y), (mole, mole)), skin * 0.45)
    for side in (-1.0, 1.0):
        canvas = _eye(canvas, person, shot, view, (side * x, y), side)
    return _blend(canvas, _fringe(person, view, x, y), _hair_color(person, shot))


def _fringe(person: TraitDraws, view: HeadView, x: Tensor, y: Tensor) -> Tensor:
    line = person.hairline + person.parting * x + 0.35 * x.square()
    temple = _below(view, 0.88 * person.head_width - x.abs()) * _below(view, y - person.hair_length)
    return torch.maximum(_below(view, y - line), temple)


def _beard(canvas: Tensor, person: TraitDraws, x: Tensor, y: Tensor) -> Tensor:
    grown = torch.sigmoid((y - 0.45 - 0.1 * x.abs()) * 12) * (person.beard.clamp(min=0) * 0.8)
    return canvas * (1 - grown)[:, None]


def _nose(canvas: Tensor, person: TraitDraws, shot: TraitDraws, view: HeadView, at: tuple[Tensor, Tensor]) -> Tensor:
    x, y = at
    skin, tip = _skin_color(person), nose_x(shot)
    along = ((y - person.eye_y) / (person.nose_y - person.eye_y)).clamp(0, 1)
    side = torch.exp(-(((x - tip * along).abs() - person.nose_width * (0.35 + 0.65 * along)) / 0.03).square())
    inside = (y > person.eye_y - 0.05) & (y < person.nose_y + 0.02)
    canvas = canvas * (1 - (0.15 + 0.2 * person.nose_bridge) * side * inside)[:, None]
    for direction in (-1.0, 1.0):
        nostril = (tip + direction * 0.55 * person.nose_width, person.nose_y + 0.03)
        radii = (0.32 * person.nose_width, torch.full_like(tip, 0.022))
        canvas = _blend(canvas, 0.8 * _ellipse(view, x, y, nostril, radii), skin * 0.4)
    return canvas


def _mouth(canvas: Tensor, person: TraitDraws, shot: TraitDraws, view: HeadView, at: tuple[Tensor, Tensor]) -> Tensor:
    x, y = at
    half, opened = mouth_half(person, shot), 0.1 * shot.mouth_open.clamp(min=0)
    middle = (torch.zeros_like(half), person.mouth_y)
    bent = y - mouth_bend(shot) * (x / half).square().clamp(max=1.5)
    red = person.lip_red
    tone = person.skin_tone
    lips = _color(tone * (0.85 + 0.2 * red), tone * (0.6 - 0.25 * red), tone * (0.58 - 0.2 * red))
    canvas = _blend(canvas, _ellipse(view, x, bent, middle, (half, person.lip_thickness + opened)), lips)
    inner = _ellipse(view, x, bent, middle, (0.85 * half, 0.008 + opened))
    return _blend(canvas, inner, lips * 0.3)


def _eye(
    canvas: Tensor, person: TraitDraws, shot: TraitDraws, view: HeadView, at: tuple[Tensor, Tensor], side: float
) -> Tensor:
    """Draw one eye and its brow; `at` mirrors the face so the eye is always on the positive side."""
    x, y = at
    across, rise = x - person.eye_x, y - person.eye_y
    tilted = rise + person.eye_tilt * across
    height = person.eye_height * (1 - 0.8 * shot.blink.clamp(0, 1).square())
    zero = torch.zeros_like(height)
    white = _ellipse(view, across, tilted, (zero, zero), (person.eye_width, height))
    lid = _ellipse(view, across, tilted, (zero, zero - 0.012), (person.eye_width + 0.015, height + 0.018))
    canvas = _blend(canvas, lid, _skin_color(person) * 0.35)
    canvas = _blend(canvas, white, torch.full((1, 3, 1, 1), 0.92))
    gaze = side * shot.gaze * person.eye_width
    iris = _ellipse(view, across, rise, (gaze, zero), (person.iris_size, person.iris_size))
    tone, blue = person.iris_tone, person.iris_blue
    canvas = _blend(canvas, iris * white, _color(tone * (1 - 0.7 * blue), tone * 0.75, tone * (0.3 + 0.9 * blue)))
    pupil = _ellipse(view, across, rise, (gaze, zero), (0.45 * person.iris_size, 0.45 * person.iris_size))
    canvas = _blend(canvas, pupil * white, torch.zeros(1, 3, 1, 1))
    lifted = rise + person.brow_gap + shot.brow_raise + person.brow_tilt * across + 1.5 * across.square()
    brow = _ellipse(view, across, lifted, (zero, zero), (person.brow_width, person.brow_thickness))
    return _blend(canvas, brow, _hair_color(person, shot) * 0.7)


def _draw_occlusion(canvas: Tensor, person: TraitDraws, shot: TraitDraws, view: HeadView) -> Tensor:
    """Draw glasses on about one face in four, and an object in front of about one in three."""
    x, y = frontal(person, shot, view.x, view.y)
    worn = (shot.glasses > 0.5).float()
    radius = person.eye_width + 0.09
    for side in (-1.0, 1.0):
        middle = (side * person.eye_x, person.eye_y + 0.02)
        rim = _ellipse(view, x, y, middle, (radius, radius * 0.8))
        lens = _ellipse(view, x, y, middle, (radius - 0.035, radius * 0.8 - 0.035))
        canvas = _blend(canvas, worn * (rim - lens * (1 - 0.35 * (shot.cover_tone > 0.6))), torch.zeros(1, 3, 1, 1))
    held = (shot.cover > 0.3).float()
    covered = _ellipse(view, view.x, view.y, (shot.cover_x, shot.cover_y), (shot.cover_size, 0.7 * shot.cover_size))
    tone = shot.cover_tone.clamp(0, 1)
    return _blend(canvas, held * covered, _color(tone, 1 - tone, 0.4 + 0.3 * tone))


def _apply_camera(canvas: Tensor, shot: TraitDraws, grain: Tensor) -> Tensor:
    """Apply the camera: exposure, color cast, blur, grain and conversion to bytes."""
    cast = _color(shot.exposure + shot.warmth, shot.exposure + shot.tint, shot.exposure - shot.warmth).exp()
    blurred = _blur(canvas * cast, (shot.blur.clamp(min=0) * grain.shape[-1] / 64).flatten())
    return ((blurred + shot.grain.clamp(min=0)[:, None] * grain) * 255).round().clamp(0, 255).to(torch.uint8)


def _blur(images: Tensor, sigmas: Tensor) -> Tensor:
    """Blur each image with its own Gaussian, rows first, then columns."""
    reach = max(1, math.ceil(2 * float(sigmas.max())))
    offsets = torch.arange(-reach, reach + 1)
    kernels = torch.exp(-0.5 * (offsets / sigmas.clamp(min=0.05)[:, None]).square())
    kernels = (kernels / kernels.sum(dim=1, keepdim=True)).repeat_interleave(3, dim=0)
    height, width = images.shape[-2:]
    planes = F.pad(images.reshape(1, -1, height, width), (reach,) * 4, mode="replicate")
    planes = F.conv2d(planes, kernels[:, None, None, :], groups=len(kernels))
    return F.conv2d(planes, kernels[:, None, :, None], groups=len(kernels)).view_as(images)
