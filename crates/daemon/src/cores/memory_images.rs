//! Persisted memory of earlier daemons on a core: the images that hold content of a volume, and the attachment of a
//! volume that is recovered from them.

use std::rc::Rc;

use engine::{AttachError, Backing, Volume, VolumeId, VolumeSpec, WriteSource};
use seam::BlockMut;
use seam::real::{PersistedPool, RealBlockMut, RealSeam};

use super::data_core::CoreLocal;
use logging::{self as log, MEMORY};

/// A block's content.
struct ImageBlock<'a>(&'a [u8]);

impl WriteSource<RealSeam> for ImageBlock<'_> {
    fn fill(&mut self, _: usize, block: &mut RealBlockMut, at: usize, len: usize) {
        block.write_bytes(at, &self.0[at..at + len]);
    }
}

impl CoreLocal {
    /// The images that hold content of a volume.
    pub fn images_with_content_of(&self, volume_id: VolumeId) -> Vec<Rc<PersistedPool>> {
        let has_content =
            |image: &&Rc<PersistedPool>| image.image_of(volume_id.0).is_some_and(|image| image.has_content());
        self.memory_images.borrow().iter().filter(has_content).cloned().collect()
    }

    /// Attaches a volume, with what earlier daemons left of it on flash or in memory. On an error the files keep their
    /// content.
    pub(super) async fn attach_recovered(
        &self,
        spec: VolumeSpec,
        backing: Backing<RealSeam>,
    ) -> Result<Volume<RealSeam>, AttachError> {
        let volume_id = spec.volume_id;
        let files: Vec<_> =
            self.memory_images.borrow().iter().filter(|file| file.image_of(volume_id.0).is_some()).cloned().collect();
        let Some((file, image)) = files.first().and_then(|file| Some((file, file.image_of(volume_id.0)?))) else {
            return self.engine.attach_recovered(spec, backing).await;
        };
        let content = |place| ImageBlock(file.content(place));
        let (volume, taken) = self.engine.attach_with_memory(spec, backing, &image, content).await?;
        // The oldest file, which has everything, is erased last: a kill in between must not leave only a partial copy.
        files.iter().rev().for_each(|file| file.remove_tags_of(volume_id.0));
        if taken > 0 {
            log::info!(
                target: MEMORY, volume = volume.name(),
                "volume {}: recovered {taken} acknowledged blocks and zero ranges that a killed daemon had left in \
                 memory",
                volume.name()
            );
        }
        Ok(volume)
    }
}
