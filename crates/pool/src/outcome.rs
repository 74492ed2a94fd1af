//! Outcomes of requests to groups: a group that reports that it is gone is an event for people.

use seam::{Disk, DiskError, Seam};

use crate::lost;
use crate::number::{GroupNo, SliceAddress};
use crate::state::State;

/// The place of a request, for messages.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// Bytes of a slice: offset in it and length.
    Bytes(SliceAddress, u64, u64),
    /// A part of the pool by its description.
    Part(&'static str),
}

impl<S: Seam, D: Disk<S>> State<S, D> {
    /// Notes the outcome of a request to a group, and names group and place in its error.
    pub fn note_result<T>(
        &mut self,
        group: GroupNo,
        place: Place,
        result: Result<T, DiskError>,
    ) -> Result<T, DiskError> {
        match result {
            Ok(value) => {
                let entry = &mut self.groups[group.index()];
                (entry.is_gone, entry.has_answered) = (false, true);
                Ok(value)
            }
            Err(error) => {
                self.set_gone(group, error == DiskError::Gone);
                Err(match error {
                    DiskError::Unsupported | DiskError::ReadOnly | DiskError::Hung(_) => error,
                    _ => {
                        let (name, place) = (self.group_name(group), self.place_text(place));
                        DiskError::Io(format!("group {group} ({name}), {place}: {error}"))
                    }
                })
            }
        }
    }

    fn place_text(&self, place: Place) -> String {
        match place {
            Place::Bytes(slice, offset, len) => {
                let at = u64::from(slice.slice.0) * self.slice_bytes() + offset;
                let name = self.volumes.get(&slice.volume).map(|volume| volume.spec.name.clone());
                format!("bytes {at}+{len} of volume {}", name.unwrap_or_else(|| slice.volume.to_string()))
            }
            Place::Part(text) => text.to_owned(),
        }
    }

    /// Notes whether a group has reported that it is gone. The first report is an event for people.
    pub fn set_gone(&mut self, group: GroupNo, is_gone: bool) {
        let was_gone = std::mem::replace(&mut self.groups[group.index()].is_gone, is_gone);
        if is_gone && !was_gone {
            let (name, ranges) = (self.group_name(group), lost::describe(self, group));
            self.notices.push(format!("group {group} ({name}) is gone; {ranges}"));
        }
    }
}
