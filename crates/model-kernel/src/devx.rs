//! The methods of DevX that carry commands: OTHER, OBJ_CREATE, OBJ_MODIFY, OBJ_QUERY, and the two
//! numbers that a client cannot know: an event queue's and a UAR page's.

use verbless_prm::Opcode;

use nix::errno::Errno;

use super::abi::attr;
use super::context::REGISTERS_PER_PAGE;
use super::file::Method;
use super::handles::{DevxObject, Object};
use super::mailbox::{UID, VHCA_TUNNEL_ID};
use super::rules::{self, ObjectId};

impl Method<'_> {
    /// The uid with which a command is sent.
    fn devx_uid(&self, input: &[u8]) -> Result<u16, Errno> {
        let own = self.state.context()?.uid;
        if own != 0 {
            return Ok(own);
        }
        if !rules::is_harmless(input) {
            return Err(Errno::EINVAL);
        }
        match self.file.kernel.spare_uid {
            0 => Err(Errno::EOPNOTSUPP),
            spare => Ok(spare),
        }
    }

    /// A uid stamped into a command for an object; EINVAL for one that goes to another vhca.
    fn stamp(&self, input: &mut [u8]) -> Result<(), Errno> {
        if VHCA_TUNNEL_ID.get(input) != 0 {
            return Err(Errno::EINVAL);
        }
        let uid = self.devx_uid(input)?;
        UID.set(input, uid.into());
        Ok(())
    }

    /// Executes a client's command and returns the outbox, even if the device refused.
    fn pass(&mut self, input: &[u8], out: u16) -> Result<(), Errno> {
        let mut output = vec![0; self.attrs.len(out)?];
        let result = self.file.kernel.run(input, &mut output);
        if let Err(errno) = result
            && errno != Errno::EREMOTEIO
        {
            return Err(errno);
        }
        self.attrs.put(out, &output)?;
        result
    }

    pub(super) fn other(&mut self) -> Result<(), Errno> {
        let mut input = self.attrs.bytes(attr::OTHER_IN)?;
        let uid = self.devx_uid(&input)?;
        let tunnel = self.file.kernel.caps.vhca_tunnel_commands() != 0;
        if !rules::is_general(&input, tunnel) {
            return Err(Errno::EINVAL);
        }
        UID.set(&mut input, uid.into());
        self.pass(&input, attr::OTHER_OUT)
    }

    pub(super) fn obj_create(&mut self) -> Result<Object, Errno> {
        let mut input = self.attrs.bytes(attr::OBJ_IN)?;
        let kernel = &self.file.kernel;
        self.stamp(&mut input)?;
        if !rules::is_create(&input) {
            return Err(Errno::EINVAL);
        }
        if rules::opcode(&input) == Opcode::CREATE_MKEY {
            if input.len() < rules::CREATE_MKEY_MIN {
                return Err(Errno::EINVAL);
            }
            rules::insist_on_mkey_umem(&mut input);
        } else {
            rules::insist_on_umem(&mut input);
        }
        if let Some(queue) = rules::cq_event_queue(&input, kernel.caps.apu())
            && !kernel.is_completion_queue(queue)
        {
            return Err(Errno::ENOENT);
        }
        let mut output = vec![0; self.attrs.len(attr::OBJ_OUT)?];
        match kernel.run(&input, &mut output) {
            Ok(()) => {}
            Err(Errno::EREMOTEIO) => {
                self.attrs.put(attr::OBJ_OUT, &output)?;
                return Err(Errno::EREMOTEIO);
            }
            Err(errno) => return Err(errno),
        }
        let created = rules::created_object(&input, &output).ok_or(Errno::EINVAL)?;
        if let Err(errno) = self.attrs.put(attr::OBJ_OUT, &output) {
            let _ = kernel.exec(&created.destroy, &mut [0; 16]);
            return Err(errno);
        }
        Ok(Object::Devx(DevxObject {
            id: created.id,
            destroy: created.destroy,
            bulk: created.bulk,
            serial: kernel.subscriptions.serial(),
        }))
    }

    /// Checks that a command is for the object that the handle stands for: one of DevX, or a queue
    /// of verbs by the number that the device knows it by.
    fn check_object(&self, input: &[u8]) -> Result<(), Errno> {
        let named = rules::named_object(input).ok_or(Errno::EINVAL)?;
        let handle = self.named.handle.ok_or(Errno::EINVAL)?;
        let made_by = |opcode, number| named == ObjectId { number, opcode, general_type: 0 };
        let same = match self.state.object(handle) {
            Some(Object::Devx(object))
                if rules::opcode(input) == Opcode::QUERY_FLOW_COUNTER && object.bulk != 0 =>
            {
                let same_kind = named.opcode == object.id.opcode;
                same_kind && named.number.wrapping_sub(object.id.number) < object.bulk
            }
            Some(Object::Devx(object)) => named == object.id,
            Some(Object::Verbs(object)) => {
                object.queue().is_some_and(|(opcode, number)| made_by(opcode, number))
            }
            _ => false,
        };
        if same { Ok(()) } else { Err(Errno::EINVAL) }
    }

    pub(super) fn obj_modify(&mut self) -> Result<(), Errno> {
        let mut input = self.attrs.bytes(attr::OBJ_IN)?;
        self.stamp(&mut input)?;
        if !rules::is_modify(&input) {
            return Err(Errno::EINVAL);
        }
        self.check_object(&input)?;
        rules::insist_on_umem(&mut input);
        self.pass(&input, attr::OBJ_OUT)
    }

    pub(super) fn obj_query(&mut self) -> Result<(), Errno> {
        let input = self.query_command()?;
        self.check_object(&input)?;
        self.pass(&input, attr::OBJ_OUT)
    }

    /// The inbox of a query with the uid set; EINVAL if it is no query.
    fn query_command(&self) -> Result<Vec<u8>, Errno> {
        let mut input = self.attrs.bytes(attr::OBJ_IN)?;
        self.stamp(&mut input)?;
        if rules::is_query(&input) { Ok(input) } else { Err(Errno::EINVAL) }
    }

    /// A query whose outbox arrives as a record of an async command file.
    pub(super) fn obj_async_query(&mut self) -> Result<(), Errno> {
        /// Bytes of outboxes that may wait in one file.
        const MAX_WAITING: usize = 1 << 20;
        /// Bytes of the `wr_id` before an outbox.
        const HEAD: usize = 8;
        let input = self.query_command()?;
        let len = self.attrs.number(attr::ASYNC_QUERY_OUT_LEN, u16::MAX.into())? as usize;
        self.check_object(&input)?;
        let stream = self.stream()?;
        if stream.channel().waiting(HEAD) + len > MAX_WAITING {
            return Err(Errno::EAGAIN);
        }
        let mut record = self.attrs.bytes(attr::ASYNC_QUERY_WR_ID)?;
        let mut output = vec![0; len];
        match self.file.kernel.run(&input, &mut output) {
            Ok(()) | Err(Errno::EREMOTEIO) => {}
            Err(errno) => return Err(errno),
        }
        record.extend(output);
        stream.channel().send(record);
        Ok(())
    }

    pub(super) fn query_eqn(&mut self) -> Result<(), Errno> {
        let vector = self.attrs.data(attr::QUERY_IN)? as u16;
        self.state.context()?;
        let queue = self.file.kernel.completion_queue(vector).ok_or(Errno::EINVAL)?;
        self.attrs.put(attr::QUERY_OUT, &queue.to_ne_bytes()).map_err(|_| Errno::EFAULT)
    }

    /// The page of a doorbell register that came with the context.
    pub(super) fn query_uar(&mut self) -> Result<(), Errno> {
        let context = self.state.context()?;
        let register = self.attrs.data(attr::QUERY_IN)? as u32;
        if context.dynamic_uars {
            return Err(Errno::EINVAL);
        }
        let index = (register / REGISTERS_PER_PAGE) as usize;
        let page = *context.static_uars.get(index).ok_or(Errno::EINVAL)?;
        self.attrs.put(attr::QUERY_OUT, &page.to_ne_bytes()).map_err(|_| Errno::EFAULT)
    }
}
