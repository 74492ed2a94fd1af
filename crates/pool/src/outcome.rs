//! Outcomes of requests to groups: a group that reports that it is gone is an event for people.

use seam::{Disk, DiskError, Seam};

use crate::lost;
use crate::number::GroupNo;
use crate::state::State;

impl<S: Seam, D: Disk<S>> State<S, D> {
    /// Notes the outcome of a request to a group, and names group and range in its error.
    pub fn note_result<T>(
        &mut self,
        group: GroupNo,
        range: &str,
        result: Result<T, DiskError>,
    ) -> Result<T, DiskError> {
        let name = self.group_name(group);
        let entry = &mut self.groups[group.index()];
        match result {
            Ok(value) => {
                (entry.is_gone, entry.has_answered) = (false, true);
                Ok(value)
            }
            Err(error) => {
                self.set_gone(group, error == DiskError::Gone);
                let text = format!("group {group} ({name}), {range}: {error}");
                Err(match error {
                    DiskError::Unsupported | DiskError::ReadOnly | DiskError::Hung(_) => error,
                    _ => DiskError::Io(text),
                })
            }
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
