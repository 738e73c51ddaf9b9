"""A small neural audio codec with driftvq's ResidualVQ, trained on synthesised speech in minutes on a CPU.

python examples/audio_codec.py --out audio                    # trains, prints a table, writes WAV files
python examples/audio_codec.py --quantizer ema_vq             # another inner quantizer
python examples/audio_codec.py --quantizer peer               # vector-quantize-pytorch's ResidualVQ in its place

The codec: 8,000 samples a second become 200 latents a second, each coded by up to 4 levels of 256 codes: 1.6 kbit/s a
level. In training every batch uses a random number of levels, so one model serves all bit rates.
"""

import argparse
import math
import time
import wave
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftvq import ResidualVQ

RATE, HOP, LEVELS, CODES = 8_000, 40, 4, 256
VOWELS = torch.tensor([[730, 1090, 2440], [270, 2290, 3010], [300, 870, 2240], [530, 1840, 2480], [570, 840, 2410.0]])
"""Formants of a, i, u, e and o in Hz (Peterson and Barney, 1952)."""


def speech(count: int, seconds: float, generator: torch.Generator) -> Tensor:
    """Syllables of pulses with a wandering pitch through three formants, hisses and pauses: ``(count, 1, samples)``."""
    samples, syllables = int(seconds * RATE), max(1, round(seconds * 5))
    time_t = torch.arange(samples) / RATE
    shape = (count, syllables)
    pitch = 90 + 140 * torch.rand(count, 1, generator=generator)
    melody = 1 + 0.15 * torch.sin(2 * math.pi * (0.7 + torch.rand(count, 1, generator=generator)) * time_t)
    phase = torch.cumsum(pitch * melody / RATE, dim=1) * 2 * math.pi
    which = torch.randint(len(VOWELS), shape, generator=generator)
    hiss = torch.rand(shape, generator=generator) < 0.3
    voice = torch.zeros(count, samples)
    formants = _spread(VOWELS[which], samples)
    for harmonic in range(1, 30):
        frequency = harmonic * pitch * melody
        gain = (1 / (1 + ((frequency[..., None] - formants) / 80) ** 2)).sum(dim=2)
        voice += gain * torch.sin(harmonic * phase) * (frequency < RATE / 2) / harmonic**0.5
    noise = torch.randn(count, samples, generator=generator)
    noise = F.pad(noise, (1, 0)).diff(dim=1) * 0.3
    hissing = _spread(hiss[..., None].float(), samples)[..., 0]
    envelope = torch.sin(math.pi * (time_t * 5 % 1)).square()
    sound = (voice * (1 - hissing) + noise * hissing) * envelope
    return (0.3 * sound / sound.abs().amax(dim=1, keepdim=True).clamp(min=1e-3))[:, None]


def _spread(values: Tensor, samples: int) -> Tensor:
    """Values of syllables ``(count, syllables, v)`` as smooth curves ``(count, samples, v)``."""
    curves = F.interpolate(values.movedim(1, 2), size=samples, mode="linear", align_corners=True)
    return curves.movedim(1, 2)


class Codec(nn.Module):
    """A window every 40 samples, convolutions over windows to 32 channels, a quantizer, and back."""

    def __init__(self, quantizer: nn.Module, width: int = 128, channels: int = 32) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv1d(1, width, 2 * HOP, HOP, padding=HOP // 2),
            nn.ELU(),
            nn.Conv1d(width, width, 5, padding=2),
            nn.ELU(),
            nn.Conv1d(width, channels, 3, padding=1),
        )
        self.decoder = nn.Sequential(
            nn.Conv1d(channels, width, 3, padding=1),
            nn.ELU(),
            nn.Conv1d(width, width, 5, padding=2),
            nn.ELU(),
            nn.ConvTranspose1d(width, 1, 2 * HOP, HOP, padding=HOP // 2),
        )
        self.quantizer = quantizer

    def forward(self, sound: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        quantized, indices, loss = self.quantizer(self.encoder(sound).movedim(1, 2))
        return self.decoder(quantized.movedim(1, 2))[..., : sound.shape[2]], indices, loss.sum()

    @torch.no_grad()
    def decoded(self, sound: Tensor, levels: int) -> Tensor:
        """Through the indices of the first levels and back, as a file would go."""
        indices = self.quantizer(self.encoder(sound).movedim(1, 2))[1].clone()
        indices[..., levels:] = -1
        codes = self.quantizer.get_output_from_indices(indices)
        return self.decoder(codes.movedim(1, 2))[..., : sound.shape[2]]


def make_quantizer(name: str) -> nn.Module:
    """The residual quantizer of this name, with dropout of levels."""
    if name != "peer":
        return ResidualVQ(32, CODES, num_quantizers=LEVELS, quantizer=name, quantizer_dropout=0.5)
    import vector_quantize_pytorch as peer

    # Its remedies against dead codes are on: a k-means start, and rare codes are replaced.
    options = {"kmeans_init": True, "threshold_ema_dead_code": 2, "commitment_weight": 0.125, "decay": 0.99}
    return peer.ResidualVQ(dim=32, codebook_size=CODES, num_quantizers=LEVELS, quantize_dropout=True, **options)


def spectral_distance(a: Tensor, b: Tensor) -> Tensor:
    """Mean absolute difference of log magnitudes over three window lengths."""
    total = a.new_zeros(())
    for size in (128, 256, 512):
        window = torch.hann_window(size)
        pair = [torch.stft(x[:, 0], size, size // 4, window=window, return_complex=True).abs() for x in (a, b)]
        total = total + F.l1_loss(*((magnitude + 1e-3).log() for magnitude in pair))
    return total / 3


def train(codec: Codec, steps: int, batch: int, seconds: float, seed: int) -> None:
    """Adam on random cuts of two minutes of speech."""
    generator = torch.Generator().manual_seed(seed)
    corpus, length = speech(60, 2.0, generator), int(seconds * RATE)
    optimizer = torch.optim.AdamW(codec.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for step in range(steps):
        rows = torch.randint(len(corpus), (batch,), generator=generator)
        start = int(torch.randint(corpus.shape[2] - length, (), generator=generator))
        sound = corpus[rows, :, start : start + length]
        heard, _, loss = codec(sound)
        error = F.l1_loss(heard, sound) * 100 + spectral_distance(heard, sound)
        optimizer.zero_grad()
        (error + loss).backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: error {error.item():.3f}, quantizer's loss {loss.item():.4f}", flush=True)


@torch.no_grad()
def table(codec: Codec, sound: Tensor) -> str:
    """Signal-to-noise ratio, spectral distance and codes in use at each number of levels."""
    codec.eval()
    indices = codec.quantizer(codec.encoder(sound).movedim(1, 2))[1]
    lines = ["| levels | kbit/s | SNR, dB | spectral distance | codes in use |", "|---|---|---|---|---|"]
    rate = RATE / HOP * math.log2(CODES) / 1000
    for levels in range(1, LEVELS + 1):
        heard = codec.decoded(sound, levels)
        snr = 10 * (sound.square().sum() / (heard - sound).square().sum()).log10()
        used = indices[..., levels - 1].unique().numel() / CODES
        distance = spectral_distance(heard, sound)
        lines.append(f"| {levels} | {levels * rate:.1f} | {snr:.1f} | {distance:.3f} | {used:.0%} |")
    return "\n".join(lines)


def write_wav(path: Path, sound: Tensor) -> None:
    """Mono, 16 bits."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((sound.clamp(-1, 1) * 32767).to(torch.int16).numpy().tobytes())


def main() -> None:
    """Train, print the table, write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quantizer", default="ns_vq", help="a quantizer of driftvq by name, or peer")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.25, help="length of a training example")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for WAV files")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    codec, started = Codec(make_quantizer(arguments.quantizer)), time.perf_counter()
    train(codec, arguments.steps, arguments.batch, arguments.seconds, arguments.seed)
    print(f"\n{arguments.quantizer}, {arguments.steps} steps, {time.perf_counter() - started:.0f} s\n")
    sound = speech(16, 2.0, torch.Generator().manual_seed(10_000))
    print(table(codec, sound))
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        write_wav(arguments.out / "before.wav", sound[0, 0])
        for levels in (1, LEVELS):
            write_wav(arguments.out / f"after_{levels}_levels.wav", codec.decoded(sound[:1], levels)[0, 0])
        print(f"\nwrote before.wav and after_….wav to {arguments.out}")


if __name__ == "__main__":
    main()
