"""The draft step for gfx950, made of device words: one small function a stage. Needs FlyDSL to be imported."""
