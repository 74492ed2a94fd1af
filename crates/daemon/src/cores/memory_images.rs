//! Memory images of earlier daemons on a core: the images that hold content of a volume, and the attach of a volume
//! that is recovered from them.

use std::rc::Rc;

use engine::{AttachError, Backing, Volume, VolumeId, VolumeSpec, WriteSource};
use seam::BlockMut;
use seam::real::{PersistedPool, RealBlockMut, RealSeam};

use super::data_core::CoreLocal;
use logging::{self as log, MEMORY};

/// A block's content in a memory image.
struct ImageBlock<'a>(&'a [u8]);

impl WriteSource<RealSeam> for ImageBlock<'_> {
    fn fill(&mut self, _: usize, block: &mut RealBlockMut, offset: usize, len: usize) {
        block.write_bytes(offset, &self.0[offset..offset + len]);
    }
}

impl CoreLocal {
    /// The images that hold content of a volume.
    pub fn images_with_content_of(&self, volume_id: VolumeId) -> Vec<Rc<PersistedPool>> {
        let has_content =
            |image: &&Rc<PersistedPool>| image.image_of(volume_id.0).is_some_and(|shm_image| shm_image.has_content());
        self.memory_images.borrow().iter().filter(has_content).cloned().collect()
    }

    /// Attaches a volume, with its dirty data that earlier daemons left on flash or in memory. On an error the images
    /// keep their content.
    pub(super) async fn attach_recovered(
        &self,
        spec: VolumeSpec,
        backing: Backing<RealSeam>,
    ) -> Result<Volume<RealSeam>, AttachError> {
        let volume_id = spec.volume_id;
        let images: Vec<_> =
            self.memory_images.borrow().iter().filter(|image| image.image_of(volume_id.0).is_some()).cloned().collect();
        let Some((oldest, shm_image)) = images.first().and_then(|image| Some((image, image.image_of(volume_id.0)?)))
        else {
            return self.engine.attach_recovered(spec, backing).await;
        };
        let content = |index| ImageBlock(oldest.content(index));
        let (volume, recovered) = self.engine.attach_with_memory(spec, backing, &shm_image, content).await?;
        // The oldest image is complete, so it is erased last: a kill in between must not leave only a partial copy.
        images.iter().rev().for_each(|image| image.remove_tags_of(volume_id.0));
        if recovered > 0 {
            log::info!(
                target: MEMORY, volume = volume.name(),
                "volume {}: recovered {recovered} acknowledged blocks and zero ranges that a killed daemon had left in \
                 memory",
                volume.name()
            );
        }
        Ok(volume)
    }
}
