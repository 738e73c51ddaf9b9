"""What holds a quantizer's codes and what moves them: one kind of codebook, or one part that moves codes, per file."""
