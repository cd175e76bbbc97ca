"""Faces from Python: compare two photographs, enroll people, name the people at the door."""

import tempfile

from torch.nn import functional as F

from fedra.faces import FaceRecognizer, Gallery, KnownPoints, SyntheticFaces, write_photos

knobs = dict.fromkeys(("pose", "light", "expression", "occlusion", "background", "noise"), 0.2)
with tempfile.TemporaryDirectory() as folder:
    photos = write_photos(f"{folder}/photos", SyntheticFaces(knobs=knobs), identities=5, images=4)
    # The model is the folder of a run, a weight file, or any module or callable, such as these smoothed pixels.
    # detector="yunet" finds all faces of a photograph or camera frame; here the points of the faces are known.
    recognizer = FaceRecognizer(
        lambda images: F.avg_pool2d(images - images.mean(dim=(1, 2, 3), keepdim=True), 4).flatten(1),
        detector=KnownPoints(photos / "points.json"), size=64, fingerprint="smoothed pixels 1")  # fmt: skip
    same = recognizer.verify(photos / "person_00000/0000.jpg", photos / "person_00000/0001.jpg", threshold=0.9)
    print(f"two photographs: {same.score:.0%} similar, one person: {same.same}")
    gallery = Gallery.open(f"{folder}/staff.gallery", recognizer)
    for number, name in enumerate(["Ada", "Emmy", "Grace", "Sofya"]):  # the fifth person stays unknown
        gallery.enroll(name, [photos / f"person_{number:05d}/{image:04d}.jpg" for image in range(3)])
    for photo in sorted(photos.glob("person_*/0003.jpg")):
        found = gallery.identify(photo, top=2, threshold=0.9)
        print(found.face.box.round(), found.face.embedding.shape, found.name or "no match", found.matches[0])
