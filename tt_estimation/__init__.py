"""Ball physics, state estimation with spin, prediction and identification of ball constants."""
