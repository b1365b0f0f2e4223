"""A segmentation net in plain PyTorch, with a loop as people write it. No Keras anywhere.

A batch of 96 pictures takes more than 700 MiB. The two lines for legroom are the import and the
decorator.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import legroom

torch.manual_seed(0)
pictures = torch.rand(288, 3, 64, 64)
masks = (pictures.mean(1, keepdim=True) > 0.5).float()
loader = DataLoader(TensorDataset(pictures, masks), batch_size=96, shuffle=True)


def block(channels_in, channels_out):
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1),
        nn.GroupNorm(4, channels_out),
        nn.ReLU(),
        nn.Dropout2d(0.1),
    )


model = nn.Sequential(block(3, 64), block(64, 64), block(64, 64), nn.Conv2d(64, 1, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
loss_function = nn.BCEWithLogitsLoss()


@legroom.step
def train_step(x, y):
    optimizer.zero_grad()
    loss = loss_function(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    return loss.item()


model.train()
for epoch in range(2):
    losses = [train_step(x, y) for x, y in loader]
    print(f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.4f}")
print(f"final loss: {losses[-1]:.5f}")
