"""Motor bus, moteus driver, safety layer, real-time loop, rigid-body dynamics and gains."""
