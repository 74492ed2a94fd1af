//! Clean pages: what can be read is what was put there and not invalidated since.

use flash::{OpenOptions, PutError};
use seam::sim::{SimBlock, SimSeam};
use seam::{Block, BlockMut, Seam};

use crate::world::{SMALL, formatted, open};

fn block(seam: &SimSeam, tag: u64) -> SimBlock {
    let mut block = seam.alloc().expect("the pool has room");
    (0..8).for_each(|sector| block.set_tag(sector, tag));
    block.freeze()
}

#[test]
fn what_was_put_can_be_read_until_it_is_invalidated() {
    let world = formatted(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        let pages = store.pages();
        let volume = pages.volume(7);
        assert_eq!(volume.put(3, vec![(0, block(&seam, 1))]).await, Err(PutError::Busy), "the map is not loaded");
        assert_eq!(pages.load().await.dropped, None);
        let blocks = vec![(0, block(&seam, 11)), (1, block(&seam, 12)), (5, block(&seam, 13))];
        assert_eq!(volume.put(3, blocks).await, Ok(0b10_0011));
        let mark = volume.begin_write(49..50).await;
        volume.end_write(mark, 1);
        assert_eq!((volume.valid(3), volume.valid(4), pages.volume(8).valid(3)), (0b10_0001, 0, 0));
        let buffers = (0..2).map(|_| seam.alloc().unwrap()).collect();
        let read = volume.read(3, 0..2, buffers).await;
        assert!(matches!(&read[0], Ok(block) if block.tags() == [11; 8]));
        assert!(read[1].is_err());
        // Under way, and overtaken by an invalidation (R2).
        let ((), put) = futures_join(
            async { volume.invalidate(64..65) },
            volume.put(4, vec![(0, block(&seam, 14)), (1, block(&seam, 15))]),
        )
        .await;
        assert_eq!((put.unwrap() & 1, volume.valid(4) & 1), (0, 0));
        volume.destaged(9, &block(&seam, 1));
        assert_eq!(volume.ring(), [(9, block(&seam, 1).checksum(0))]);
        pages.forget(7).await.unwrap();
        assert_eq!((volume.valid(3), volume.ring().len()), (0, 0));
    });
}

/// Both at once, the first one first.
async fn futures_join<A, B>(one: impl Future<Output = A>, other: impl Future<Output = B>) -> (A, B) {
    use std::task::Poll;
    let (mut one, mut other) = (std::pin::pin!(one), std::pin::pin!(other));
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(|context| {
        if second.is_none()
            && let Poll::Ready(value) = other.as_mut().poll(context)
        {
            second = Some(value);
        }
        if first.is_none()
            && let Poll::Ready(value) = one.as_mut().poll(context)
        {
            first = Some(value);
        }
        if first.is_some() && second.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    (first.expect("it has ended"), second.expect("it has ended"))
}
