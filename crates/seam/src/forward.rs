//! Disks of several kinds in one type: each call goes to the actual disk.

/// Implements `Clone` and [`crate::Disk`] for an enum whose variants each hold a disk.
#[macro_export]
macro_rules! forward_to_variants {
    ($disks:ident: $($variant:ident),+) => {
        impl<S: $crate::Seam> Clone for $disks<S> {
            fn clone(&self) -> Self {
                match self {
                    $($disks::$variant(disk) => $disks::$variant(disk.clone()),)+
                }
            }
        }

        impl<S: $crate::Seam> $crate::Disk<S> for $disks<S> {
            fn geometry(&self) -> $crate::Geometry {
                match self {
                    $($disks::$variant(disk) => disk.geometry(),)+
                }
            }

            fn identity(&self) -> String {
                match self {
                    $($disks::$variant(disk) => disk.identity(),)+
                }
            }

            fn is_identity_unique(&self) -> bool {
                match self {
                    $($disks::$variant(disk) => disk.is_identity_unique(),)+
                }
            }

            fn instance(&self) -> Option<String> {
                match self {
                    $($disks::$variant(disk) => disk.instance(),)+
                }
            }

            fn former_identities(&self) -> Vec<String> {
                match self {
                    $($disks::$variant(disk) => disk.former_identities(),)+
                }
            }

            fn connection_epoch(&self) -> u64 {
                match self {
                    $($disks::$variant(disk) => disk.connection_epoch(),)+
                }
            }

            fn lost(&self) -> Option<$crate::DiskError> {
                match self {
                    $($disks::$variant(disk) => disk.lost(),)+
                }
            }

            fn unproven_for(&self) -> Option<$crate::Nanos> {
                match self {
                    $($disks::$variant(disk) => disk.unproven_for(),)+
                }
            }

            fn lineage(&self) -> Option<$crate::Lineage> {
                match self {
                    $($disks::$variant(disk) => disk.lineage(),)+
                }
            }

            fn abandon(&self) {
                match self {
                    $($disks::$variant(disk) => disk.abandon(),)+
                }
            }

            async fn mark_undestaged(&self, is_marked: bool) -> $crate::DiskResult<()> {
                match self {
                    $($disks::$variant(disk) => disk.mark_undestaged(is_marked).await,)+
                }
            }

            fn oldest_unanswered(&self) -> Option<$crate::Nanos> {
                match self {
                    $($disks::$variant(disk) => disk.oldest_unanswered(),)+
                }
            }

            fn accesses(&self, write: bool, at: u64, len: u64) -> Option<u64> {
                match self {
                    $($disks::$variant(disk) => disk.accesses(write, at, len),)+
                }
            }

            fn allocates_at_first_write(&self) -> bool {
                match self {
                    $($disks::$variant(disk) => disk.allocates_at_first_write(),)+
                }
            }

            fn has_space_for(&self, at: u64, len: u64) -> bool {
                match self {
                    $($disks::$variant(disk) => disk.has_space_for(at, len),)+
                }
            }

            fn part_to_reserve_for_zeroes(&self, at: u64, len: u64) -> Option<::std::ops::Range<u64>> {
                match self {
                    $($disks::$variant(disk) => disk.part_to_reserve_for_zeroes(at, len),)+
                }
            }

            fn shared_content(&self, at: u64, len: u64) -> Option<$crate::ContentKey> {
                match self {
                    $($disks::$variant(disk) => disk.shared_content(at, len),)+
                }
            }

            async fn reserve(&self, at: u64, len: u64) -> $crate::DiskResult<()> {
                match self {
                    $($disks::$variant(disk) => disk.reserve(at, len).await,)+
                }
            }

            async fn read(
                &self,
                at: u64,
                into: Vec<$crate::PieceMut<S::BlockMut>>,
            ) -> ($crate::DiskResult<()>, Vec<$crate::PieceMut<S::BlockMut>>) {
                match self {
                    $($disks::$variant(disk) => disk.read(at, into).await,)+
                }
            }

            async fn write(&self, at: u64, from: Vec<$crate::Piece<S::Block>>) -> $crate::DiskResult<()> {
                match self {
                    $($disks::$variant(disk) => disk.write(at, from).await,)+
                }
            }

            async fn flush(&self) -> $crate::DiskResult<()> {
                match self {
                    $($disks::$variant(disk) => disk.flush().await,)+
                }
            }

            async fn zero(&self, at: u64, len: u64, may_unmap: bool) -> $crate::DiskResult<()> {
                match self {
                    $($disks::$variant(disk) => disk.zero(at, len, may_unmap).await,)+
                }
            }

            async fn allocation(&self, at: u64, len: u64) -> $crate::DiskResult<Vec<$crate::AllocationExtent>> {
                match self {
                    $($disks::$variant(disk) => disk.allocation(at, len).await,)+
                }
            }

            async fn refresh_size(&self) -> $crate::DiskResult<u64> {
                match self {
                    $($disks::$variant(disk) => disk.refresh_size().await,)+
                }
            }

            async fn set_size(&self, size_bytes: u64) -> $crate::DiskResult<()> {
                match self {
                    $($disks::$variant(disk) => disk.set_size(size_bytes).await,)+
                }
            }
        }
    };
}
